"""Solutions that do what the sandbox forbids, as functions f. Each gives the right answer only if that succeeds."""

# Each returns x * x, and so passes, only if its attack succeeds.
FORBIDDEN = {
    "read the project": """
def f(x):
    open('{project}').read()
    return x * x
""",
    "read passwords": """
def f(x):
    open('/etc/passwd').read()
    return x * x
""",
    "read the parent's memory": """
import os
def f(x):
    open('/proc/{pid}/mem', 'rb').close()
    return x * x
""",
    "socket": """
import socket
def f(x):
    socket.socket()
    return x * x
""",
    "unix socket": """
import socket
def f(x):
    socket.socketpair()
    return x * x
""",
    "subprocess": """
import subprocess
def f(x):
    subprocess.run(['true'])
    return x * x
""",
    "exec": """
import os
def f(x):
    os.execv('/bin/true', ['true'])
""",
    "kill the parent": """
import os, signal
def f(x):
    os.kill(os.getppid(), signal.SIGKILL)
    return x * x
""",
    "kill everyone": """
import os, signal
def f(x):
    os.kill(-1, signal.SIGKILL)
    return x * x
""",
    "kill the trainer": """
import os
def f(x):
    os.kill({pid}, 9)
    return x * x
""",
    "own the trainer's signals": """
import fcntl
def f(x):
    fcntl.fcntl(3, fcntl.F_SETOWN, {pid})
    return x * x
""",
    "ptrace": """
import ctypes
def f(x):
    return x * x if ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0 else 0
""",
    "environment": """
import os
def f(x): return x * x if '{secret}' in os.environ else 0
""",
    "trainer's environment": """
def f(x):
    open('/proc/{pid}/environ').read()
    return x * x
""",
    "write outside": """
def f(x):
    open('{folder}/file', 'w').write('x')
    return x * x
""",
    "delete outside": """
import os
def f(x):
    os.remove('{folder}/kept')
    return x * x
""",
    "truncate outside": """
import os
def f(x):
    os.truncate('{folder}/kept', 0)
    return x * x
""",
    "write a library": """
import os
def f(x):
    open(os.__file__, 'a').write('')
    return x * x
""",
    "raise the limits": """
import resource as r
def f(x):
    r.setrlimit(r.RLIMIT_CPU, (r.RLIM_INFINITY, r.RLIM_INFINITY))
    return x * x
""",
    "become root": """
import os
def f(x):
    os.setuid(0)
    return x * x
""",
    "new namespace": """
import ctypes
def f(x): return x * x if ctypes.CDLL(None).unshare(0x10000000) == 0 else 0
""",
    "shared memory": """
import ctypes
def f(x): return x * x if ctypes.CDLL(None).shmget(1, 4096, 0o1600) >= 0 else 0
""",
    "memory file": """
import os
def f(x):
    os.memfd_create('x')
    return x * x
""",
    "symbolic link out": """
import os
def f(x):
    os.symlink('{folder}/kept', '/tmp/link')
    return x * x
""",
    "hard link to a library": """
import os
def f(x):
    os.link(os.__file__, '/tmp/link')
    return x * x
""",
    "system calls of another numbering": """
import ctypes
def f(x): return x * x if ctypes.CDLL(None).syscall(0x40000000 + 57) >= 0 else 0
""",
    "take the parent's descriptors": """
import ctypes
def f(x): return x * x if ctypes.CDLL(None).syscall(434, 1, 0) >= 0 else 0
""",
    "system calls by ring": """
import ctypes
def f(x): return x * x if ctypes.CDLL(None).syscall(425, 1, ctypes.create_string_buffer(200)) >= 0 else 0
""",
    "queues that outlive it": """
import ctypes
def f(x): return x * x if ctypes.CDLL(None).msgget(7, 0o1666) >= 0 else 0
""",
}

# Only namespaces prevent these.
FORBIDDEN_IN_FULL = {
    "see processes": """
import os
def f(x): return x * x if os.path.exists('/proc') else 0
""",
    "see the parent": """
import os
def f(x): return x * x if os.getpid() != 1 or os.getppid() != 0 else 0
""",
    "fill the disk": """
def f(x):
    for i in range(64):
        with open(str(i), 'wb') as file: file.write(bytes(1 << 20))
    return x * x
""",
}
