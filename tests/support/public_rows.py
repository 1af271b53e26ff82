"""Rows in the shapes of public data sets for reinforcement learning; the contents are our own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]  # what a data set holds


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRow:
    """A row, the columns that a user would name, and the task that must come out."""

    row: Row
    columns: Mapping[str, str] = field(default_factory=lambda: {"answer": "reward_model.ground_truth"})
    prompt: str
    answer: Any  # JSON
    verifier: Any = "exact"  # settings of `data/file-v0`
    answer_form: str = "alone"
    system: str = ""
    shown: str | None = None
    """What the user's last message shows; None: the prompt."""
    right: str | None = None
    """A right message; None: the answer itself."""


def verl(prompt: list[Row], ground_truth: object, **extra_info: object) -> Row:
    """Return a row in the form of verl."""
    return {
        "data_source": "own/numbers",
        "prompt": prompt,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": extra_info,
    }


def user(text: str) -> Row:
    """Return a message of the user."""
    return {"role": "user", "content": text}


ROWS: Mapping[str, PublicRow] = {
    "gsm8k": PublicRow(
        row={"question": "Ann has 3 pens and buys 4. How many?", "answer": "3 + 4 = <<3+4=7>>7 pens.\n#### 7"},
        columns={"prompt": "question", "answer": "answer"},
        prompt="Ann has 3 pens and buys 4. How many?",
        answer="7",
        verifier="numeric",
        answer_form="hashes",
        right="She has \\boxed{7}.",
    ),
    "math": PublicRow(
        row={
            "problem": "Simplify $\\frac{2}{4}$.",
            "level": "Level 1",
            "type": "Algebra",
            "solution": "We get \\boxed{2/4}, that is $\\boxed{\\frac{1}{2}}$.",
        },
        columns={"prompt": "problem", "answer": "solution", "metadata": "level"},
        prompt="Simplify $\\frac{2}{4}$.",
        answer="\\frac{1}{2}",
        verifier="math",
        answer_form="boxed",
        right="\\boxed{0.5}",
    ),
    "math500": PublicRow(
        row={
            "problem": "Add $1$ and $2$.",
            "solution": "It is \\boxed{3}.",
            "answer": "3",
            "unique_id": "test/a/1.json",
        },
        columns={"prompt": "problem", "answer": "answer", "id": "unique_id"},
        prompt="Add $1$ and $2$.",
        answer="3",
        verifier={"name": "math", "take": "last"},
        right="\\boxed{4}. No: \\boxed{3}.",
    ),
    "dapo": PublicRow(
        row=verl([user("Find the remainder of 17 by 5.")], "2", index="9a9b6eb4"),
        prompt="Find the remainder of 17 by 5.",
        answer="2",
        verifier={"name": "math", "extract": "answer_line"},
        right="17 is 3 * 5 + 2.\nAnswer: 2",
    ),
    "verl gsm8k": PublicRow(
        row=verl([user("What is 6 + 7?")], "13", split="train", index=0, answer="6+7=13\n#### 13", question="6+7?"),
        columns={"answer": "extra_info.answer", "id": "extra_info.index", "split": "extra_info.split"},
        prompt="What is 6 + 7?",
        answer="13",
        verifier="numeric",
        answer_form="hashes",
    ),
    "eurus": PublicRow(
        row=verl([{"role": "system", "content": "Think first."}, user("Double 21.")], "42", split="dummy", index=1),
        prompt="Double 21.",
        answer="42",
        verifier="math",
        system="Think first.",
    ),
    "skywork": PublicRow(
        row=verl([user("Halve 10.")], '["5"]', index=3, model_difficulty={"small": 4, "large": 0}),
        prompt="Halve 10.",
        answer='["5"]',
        right='["5"]',
    ),
    "search-r1": PublicRow(
        row={
            **verl([user("Who wrote Hamlet?")], {"target": ["Shakespeare", "W. Shakespeare"]}, index=0),
            "id": "train_0",
        },
        columns={"answer": "reward_model.ground_truth.target", "id": "id"},
        prompt="Who wrote Hamlet?",
        answer=["Shakespeare", "W. Shakespeare"],
        verifier="f1",
        right="Shakespeare",
    ),
    "openr1": PublicRow(
        row={
            "problem": "What is $2^3$?",
            "solution": "It is 8.",
            "answer": "8",
            "problem_type": "Number Theory",
            "generations": ["<think>...</think> 8", "9"],
            "correctness_math_verify": [True, False],
            "messages": [user("What is $2^3$?"), {"role": "assistant", "content": "8"}],
        },
        columns={"prompt": "messages[0].content", "answer": "answer"},
        prompt="What is $2^3$?",
        answer="8",
        verifier="math",
    ),
    "deepscaler": PublicRow(
        row={"problem": "Solve $x+1=3$.", "answer": "2", "solution": ""},
        columns={"prompt": "problem", "answer": "answer"},
        prompt="Solve $x+1=3$.",
        answer="2",
        verifier="math",
    ),
    "rlvr-gsm": PublicRow(
        row={
            "messages": [user("What is 1 + 1?"), {"role": "assistant", "content": "2"}, user("And 5 + 5?")],
            "ground_truth": "10",
            "dataset": "gsm8k",
        },
        columns={"prompt": "messages", "answer": "ground_truth"},
        prompt="user: What is 1 + 1?\n\nassistant: 2\n\nuser: And 5 + 5?",
        answer="10",
        verifier="numeric",
    ),
    "trl": PublicRow(
        row={"prompt": [user("Name a prime below 3.")], "solution": "$\\boxed{2}$"},
        columns={"answer": "solution"},
        prompt="Name a prime below 3.",
        answer="2",
        verifier="numeric",
        answer_form="boxed",
    ),
    "big-math": PublicRow(
        row={"problem": "What is 9 - 4?", "answer": "5", "source": "own", "domain": ["Arithmetic"], "solve_rate": 0.5},
        columns={"prompt": "problem", "answer": "answer", "metadata": "domain[0]"},
        prompt="What is 9 - 4?",
        answer="5",
        verifier="numeric",
    ),
    "openmathinstruct": PublicRow(
        row={"problem": "Count to 4.", "expected_answer": "4", "generated_solution": "\\boxed{4}"},
        columns={"prompt": "problem", "answer": "expected_answer"},
        prompt="Count to 4.",
        answer="4",
        verifier="numeric",
    ),
    "aime": PublicRow(
        row={"ID": "2024-I-0", "Problem": "Find 100 + 23.", "Solution": "Add.", "Answer": 123},
        columns={"prompt": "Problem", "answer": "Answer", "id": "ID"},
        prompt="Find 100 + 23.",
        answer=123,
        verifier="math",
        right="\\boxed{123}",
    ),
    "hotpotqa": PublicRow(
        row={
            "id": "5a7a",
            "question": "In which country does the Lind end?",
            "answer": "Norvia",
            "type": "bridge",
            "level": "easy",
            "supporting_facts": {"title": ["Lind"], "sent_id": [1]},
            "context": {"title": ["Lind"], "sentences": [["It is long.", "It ends in Norvia."]]},
        },
        columns={"prompt": "question", "answer": "answer", "id": "id", "metadata": "supporting_facts.title"},
        prompt="In which country does the Lind end?",
        answer="Norvia",
        verifier="f1",
    ),
    "squad": PublicRow(
        row={
            "id": "56be",
            "title": "Lind",
            "context": "The Lind ends in Norvia.",
            "question": "Where does it end?",
            "answers": {"text": ["Norvia", "in Norvia"], "answer_start": [17, 14]},
        },
        columns={"prompt": "question", "answer": "answers.text", "context": "context"},
        prompt="Where does it end?",
        answer=["Norvia", "in Norvia"],
        verifier={"name": "exact", "ignore_case": True},
        right="norvia",
    ),
    "triviaqa": PublicRow(
        row={
            "question": "Which planet is red?",
            "answer": {"value": "Mars", "aliases": ["Mars", "Planet Mars"], "type": "WikipediaEntity"},
        },
        columns={"prompt": "question", "answer": "answer.aliases"},
        prompt="Which planet is red?",
        answer=["Mars", "Planet Mars"],
        verifier="f1",
        right="Mars",
    ),
    "nq_open": PublicRow(
        row={"question": "who sings the blue song", "answer": ["Nora Lind"]},
        columns={"prompt": "question", "answer": "answer"},
        prompt="who sings the blue song",
        answer=["Nora Lind"],
        verifier="f1",
        right="Nora Lind",
    ),
    "arc": PublicRow(
        row={
            "id": "Mercury_1",
            "question": "Which is a metal?",
            "choices": {"text": ["wood", "iron", "glass", "wool"], "label": ["A", "B", "C", "D"]},
            "answerKey": "B",
        },
        columns={"prompt": "question", "answer": "answerKey", "options": "choices.text", "id": "id"},
        prompt="Which is a metal?",
        answer="B",
        verifier="multiple_choice",
        shown="Which is a metal?\n\nA. wood\nB. iron\nC. glass\nD. wool",
        right="\\boxed{B}",
    ),
    "mmlu": PublicRow(
        row={"question": "What is 2 + 2?", "subject": "arithmetic", "choices": ["3", "4", "5", "22"], "answer": 1},
        columns={"prompt": "question", "answer": "answer", "options": "choices", "metadata": "subject"},
        prompt="What is 2 + 2?",
        answer="B",
        verifier="multiple_choice",
        answer_form="index",
        shown="What is 2 + 2?\n\nA. 3\nB. 4\nC. 5\nD. 22",
        right="The answer is 4.",
    ),
    "gpqa": PublicRow(
        row={"Question": "What is the sign of -1?", "Correct Answer": "negative", "Incorrect Answer 1": "positive"},
        columns={"prompt": "Question", "answer": "Correct Answer"},
        prompt="What is the sign of -1?",
        answer="negative",
        right="negative",
    ),
    "taco": PublicRow(
        row={
            "question": "Print 1.",
            "input_output": '{"inputs": [""], "outputs": ["1"]}',
            "name": None,
            "raw_tags": "[]",
        },
        columns={"prompt": "question", "tests": "input_output", "answer": "question"},
        prompt="Print 1.",
        answer="Print 1.",
    ),
}
"""Name of a data set of this shape -> row; each is read with settings alone."""
