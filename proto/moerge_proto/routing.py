"""How the routers of a version route a text."""

from pydantic import Field

from moerge_proto.messages import Message

MAX_CHARACTERS = 20_000


class TextToRoute(Message):
    """Asks how a version routes `text`."""

    text: str = Field(min_length=1, max_length=MAX_CHARACTERS)


class RoutedText(Message):
    """What each router of a version says of each token of a text.

    `domains`: in slot order. `tokens`: the pieces of the text that the tokens stand for; joined, they give the text.
    Tokens of one character make one piece, which has what the last of them got. `scores`: layer -> piece -> slot, the
    router's logits, to 4 digits. `experts`: layer -> piece -> the `top_k` slots that are used, first choice first.
    `context`: tokens that the model sees at once; a longer text is read in windows that overlap by half.
    """

    version: int
    domains: list[str]
    top_k: int
    context: int
    tokens: list[str]
    scores: list[list[list[float]]]
    experts: list[list[list[int]]]
