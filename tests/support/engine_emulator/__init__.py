"""An inference server without a model: SGLang's HTTP interface, timing and ways to fail."""

from tests.support.engine_emulator.answers import prompt_hash
from tests.support.engine_emulator.launch import EmulatedEngine, is_emulator
from tests.support.engine_emulator.profile import emulated_profile
from tests.support.engine_emulator.stats import read_stats

__all__ = ["EmulatedEngine", "emulated_profile", "is_emulator", "prompt_hash", "read_stats"]
