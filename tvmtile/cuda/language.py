"""The language, under the name of TileLang's dialect: this module is `tvmtile.language` itself."""

import sys
from typing import TYPE_CHECKING

from tvmtile import language

if TYPE_CHECKING:
    from tvmtile.language import *  # noqa: F403

sys.modules[__name__] = language
