"""What the sandbox forbids, as statements that raise an error unless they succeed. A solution would pass if one did."""

FORBIDDEN = {
    "read the project": "open('{project}').read()",
    "read passwords": "open('/etc/passwd').read()",
    "read the parent's memory": "open('/proc/{pid}/mem', 'rb').close()",
    "socket": "import socket; socket.socket()",
    "unix socket": "import socket; socket.socketpair()",
    "subprocess": "import subprocess; subprocess.run(['true'])",
    "exec": "import os; os.execv('/bin/true', ['true'])",
    "kill the parent": "import os; os.kill(os.getppid(), 9)",
    "kill everyone": "import os; os.kill(-1, 9)",
    "kill the trainer": "import os; os.kill({pid}, 9)",
    "own the trainer's signals": "import fcntl; fcntl.fcntl(3, fcntl.F_SETOWN, {pid})",
    "ptrace": "import ctypes; assert ctypes.CDLL(None).ptrace(16, {pid}, 0, 0) == 0",
    "environment": "import os; assert '{secret}' in os.environ",
    "trainer's environment": "open('/proc/{pid}/environ').read()",
    "write outside": "open('{folder}/file', 'w').write('x')",
    "delete outside": "import os; os.remove('{folder}/kept')",
    "truncate outside": "import os; os.truncate('{folder}/kept', 0)",
    "write a library": "import os; open(os.__file__, 'a').write('')",
    "raise the limits": "import resource as r; r.setrlimit(r.RLIMIT_CPU, (r.RLIM_INFINITY, r.RLIM_INFINITY))",
    "become root": "import os; os.setuid(0)",
    "new namespace": "import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0",
    "shared memory": "import ctypes; assert ctypes.CDLL(None).shmget(1, 4096, 0o1600) >= 0",
    "memory file": "import os; os.memfd_create('x')",
    "symbolic link out": "import os; os.symlink('{folder}/kept', '/tmp/link')",
    "hard link to a library": "import os; os.link(os.__file__, '/tmp/link')",
    "system calls of another numbering": "import ctypes; assert ctypes.CDLL(None).syscall(0x40000000 + 57) >= 0",
    "take the parent's descriptors": "import ctypes; assert ctypes.CDLL(None).syscall(434, 1, 0) >= 0",
    "system calls by ring": "import ctypes as c; assert c.CDLL(None).syscall(425, 1, c.create_string_buffer(200)) >= 0",
    "queues that outlive it": "import ctypes; assert ctypes.CDLL(None).msgget(7, 0o1666) >= 0",
}

# Only namespaces prevent these.
FORBIDDEN_IN_FULL = {
    "see processes": "import os; assert os.path.exists('/proc')",
    "see the parent": "import os; assert os.getpid() != 1 or os.getppid() != 0",
    "fill the disk": "for i in range(64): open(str(i), 'wb').write(bytes(1 << 20))",
}
