"""What `import doubtless` gives, and what it costs to others."""

import subprocess
import sys

import doubtless

HEAVY = ("click", "rich", "pydantic", "asyncio", "decimal", "uuid", "zoneinfo", "importlib.metadata", "sqlite3", "inspect", "ssl")


def test_the_public_names_are_sorted_and_all_there() -> None:
    assert doubtless.__all__ == sorted(doubtless.__all__)
    for name in doubtless.__all__:
        assert getattr(doubtless, name).__name__ == name


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    assert not hasattr(doubtless, "exactly")
    assert dir(doubtless) == doubtless.__all__


def test_importing_doubtless_needs_only_apsw_and_loads_nothing_heavy() -> None:
    code = f"""
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("click", "rich", "pydantic", "httpx", "requests"):
            raise ImportError(name)
sys.meta_path.insert(0, Refuse())
import doubtless
print([name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_signals_and_answers_of_user_code_are_importable_from_the_top() -> None:
    from doubtless import Absent, Found, Happened, NotSent, Pending, Rejected, Secret, injected, record_handle

    assert all((Absent, Found, Happened, NotSent, Pending, Rejected, Secret, injected, record_handle))
