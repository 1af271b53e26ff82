"""Chat data and chat wire forms: messages and tools to and from the forms of other projects. Pure.

`openai` and `sharegpt` write and read one message: reading what was written gives an equal message. What a form cannot
hold is refused. `rows` reads the rows of chat data sets as conversations.
"""
