"""Programs that tests run in processes of their own."""

import subprocess


def run(*command, status=0, timeout=600, **keywords):
    """Run a command to its end; a test fails where its status is another than expected."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False, **keywords)
    assert done.returncode == status, f"{words} has status {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done
