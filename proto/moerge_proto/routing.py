"""The routing of a text by a version."""

from pydantic import Field

from moerge_proto.messages import Message

MAX_CHARACTERS = 20_000


class TextToRoute(Message):
    """Asks for a version's routing of `text`."""

    text: str = Field(min_length=1, max_length=MAX_CHARACTERS)


class RoutedText(Message):
    """Each router's choice for each token of a text.

    `domains`: in slot order. `tokens`: the tokens' pieces of the text; joined, they give the text. Tokens of one
    character make one piece, with the values of the last token. `scores`: layer -> piece -> slot, the router's logits,
    to 4 digits. `experts`: layer -> piece -> the `top_k` slots in use, first choice first. `context`: the model's
    window in tokens; a longer text is read in windows that overlap by half.
    """

    version: int
    domains: list[str]
    top_k: int
    context: int
    tokens: list[str]
    scores: list[list[list[float]]]
    experts: list[list[list[int]]]
