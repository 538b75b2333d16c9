# Starts a program of another C library in every way, and through a script. Each program prints
# whether the library was loaded.
import os, subprocess, sys

program, script = sys.argv[1:3]
own = os.environ["LD_PRELOAD"]
for name in (program, script):
    print("subprocess", subprocess.run([name], capture_output=True, text=True).stdout.strip())
    print("shell", subprocess.run(["sh", "-c", name], capture_output=True, text=True).stdout.strip())
    sys.stdout.flush()
    os.waitpid(os.posix_spawn(name, [name], os.environ), 0)
    child = os.fork()
    if child == 0:
        os.execv(name, [name])
    os.waitpid(child, 0)
# Found in PATH; beside another library, which stays; and in a new environment.
os.environ["PATH"] = os.path.dirname(program) + ":" + os.environ["PATH"]
base = os.path.basename(program)
os.waitpid(os.posix_spawnp(base, [base], os.environ), 0)
os.waitpid(os.posix_spawnp(base, [base], {"LD_PRELOAD": own + ":/no/other.so"}), 0)
os.waitpid(os.posix_spawnp(base, [base], {"A": "1"}), 0)
# A program of the same C library still gets it.
print("own", "libsietch_posix" in subprocess.run(["sh", "-c", "echo $LD_PRELOAD"], capture_output=True, text=True).stdout)
