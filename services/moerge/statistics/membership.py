"""The expected success of a test whether a known document is in a contribution, by its number of documents."""

from itertools import pairwise
from math import log

FEW_DOCUMENTS = 1000
"""From here on such a test finds hardly more than its false alarms; the default of a policy's minimum."""
MEASURED = {100: 0.94, 300: 0.77, 1000: 0.62, 3000: 0.56}
"""Documents of a router contribution -> area under the test's curve, the highest of the demo's domains.

Measured by `python -m moerge_lab.trials membership`; the attacker has 300 other documents of the domain.
"""


def expected_auc(documents: int) -> str:
    """The area under the curve (AUC) for so many documents in words, between measured ones by their logarithm."""
    fewest, most = min(MEASURED), max(MEASURED)
    if documents < fewest:
        return f"AUC over {MEASURED[fewest]:.2f}"
    if documents > most:
        return f"AUC under {MEASURED[most]:.2f}"
    one, two = next(pair for pair in pairwise(MEASURED) if documents <= pair[1])
    share = log(documents / one) / log(two / one)
    return f"AUC about {MEASURED[one] + share * (MEASURED[two] - MEASURED[one]):.2f}"
