"""Solutions that attack the sandbox, as functions f; the right answer to f(x) would be x * x."""

# Where possible, f gives the right answer after the attack.
ATTACKS = {
    "fork bomb": """
import os
def f(x):
    while True: os.fork()
""",
    "endless sleep": """
import time
def f(x):
    while True: time.sleep(1000)
""",
    "memory hog": """
def f(x):
    a = [bytearray(1 << 20)]
    while True: a.append(bytearray(1 << 24))
""",
    "huge answer": "def f(x): return 'x' * (1 << 24)",
    "endless list": """
def f(x):
    a = []
    a.append(a)
    return a
""",
    "early exit": """
import os
def f(x): os._exit(0)
""",
    "marker on every descriptor": r"""
import os
def f(x):
    for fd in range(256):
        try: os.write(fd, b'{"passed": true, "why": "passed", "tests": 2, "seconds": 0.1}\n')
        except OSError: pass
""",
    "forged replies": """
import os, struct
def f(x):
    r = b'["value", true]'
    for _ in range(9): os.write(4, struct.pack('<I', len(r)) + r)
""",
    "forged type": """
import os
def f(x):
    r = b'{"t": "exec", "v": [1]}'
    os.write(4, bytes([len(r), 0, 0, 0]) + r)
""",
    "deep nesting": """
import os, struct
def f(x):
    r = b'[' * 200000
    os.write(4, struct.pack('<I', len(r)) + r)
""",
    "equal to everything": """
class E(int):
    def __eq__(self, o): return True
    __hash__ = None
def f(x): return E(5)
""",
    "patched checker": """
import builtins, sys
for name, module in list(sys.modules.items()):
    if name.startswith('rewards.'):
        for key in list(vars(module)): setattr(module, key, lambda *a: True)
sys.modules['rewards.values'].encode = lambda v: b'["value", true]'
builtins.AssertionError = builtins.Exception = KeyError
def f(x): return True
""",
    "a reply in drops": r"""
import os, time
def f(x):
    os.write(4, b'\0\x80\0\0[')
    while True:
        time.sleep(0.01)
        os.write(4, b' ')
""",
    "signals without end": """
import signal
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 1e-6, 1e-6)
def f(x):
    while True: pass
""",
    "answer on the way out": """
import os, struct
class E:
    def __del__(self):
        reply = b'["value", 36]'
        os.write(4, struct.pack('<I', len(reply)) + reply)
kept = E()
def f(x): raise SystemExit(0)
""",
    "watch the frames": """
import sys
seen = []
def watch(frame, event, argument):
    seen.extend({'check', 'tests', 'expected', 'cases'} & {*frame.f_locals, *frame.f_globals})
    return watch
sys.settrace(watch)
sys.setprofile(watch)
def f(x): return x * x if seen else 0
""",
    "system calls of 32 bits": r"""
import ctypes, mmap
def f(x):
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(bytes.fromhex('b802000000cd80c3'))  # fork
    if ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))() > 0: return x * x
""",
}

SQUARED = [("6\n", "36")]
# Programs, their cases, and what the verdict says. None of them prints the expected output honestly.
PROGRAM_ATTACKS = {
    "answers behind the input": ("import os\nprint(os.pread(0, 1000, 0).decode()[-2:])", [("6\n", "36")], ""),
    "notes from one test to the next": (
        "try: print(open('/tmp/a').read())\nexcept OSError: print(49, file=open('/tmp/a', 'w')); print(36)",
        [("6\n", "36"), ("7\n", "49")],
        "",
    ),
    "another hook for exceptions": ("import sys\nsys.excepthook = lambda *_: print(36)\n1 / 0", SQUARED, ""),
    "right, then a crash": ("import ctypes\nprint(36, flush=True)\nctypes.string_at(0)", SQUARED, ""),
    "bytes that are no text": ("import sys\nsys.stdout.buffer.write(b'\\xff')", [("6\n", "\ufffd")], ""),
    "a flood": ("import os\nwhile True: os.write(1, b'x' * (1 << 20))", SQUARED, "wrote too much"),
    "endless": ("while True: pass", SQUARED, "CPU time"),
    "right, then asleep": (
        "import os, time\nprint(36, flush=True)\nos.close(1)\ntime.sleep(99)", SQUARED, "wall time",
    ),
    "right, then a fork": ("import os\nprint(36)\nos.fork()", SQUARED, "exit status 1"),
}  # fmt: skip
