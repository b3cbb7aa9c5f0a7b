"""An inference server without a model: SGLang's HTTP interface, timing and ways to fail."""

from tests.emulated.answers import prompt_hash
from tests.emulated.launch import EmulatedEngine
from tests.emulated.profile import emulated_profile
from tests.emulated.stats import read_stats

__all__ = ["EmulatedEngine", "emulated_profile", "prompt_hash", "read_stats"]
