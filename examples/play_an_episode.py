"""Play an episode: make, reset, step, fork. Run with `python examples/play_an_episode.py`."""

import envgym

env = envgym.make("math/arithmetic-v0", level=3)
observation, info = env.reset(seed=7, options={"split": "test"})
print("task:       ", info["envgym"].task.id)
print("observation:", observation)

# The oracle reads the hidden answer; here it calls the calculator first.
action = env.unwrapped.oracle()
print("action:     ", action.replace("\n", " "))
observation, reward, terminated, truncated, info = env.step(action)
print("observation:", observation)

# A fork continues from here on its own: state, tools, generator, turn count.
twin = env.fork()
print("a wrong answer:", twin.step("I do not know.").reward)
result = env.step(env.unwrapped.oracle())
print("the right one: ", result.reward)

record = result.info["envgym"]
print("components:", dict(record.reward.components), "ending:", record.ending)
