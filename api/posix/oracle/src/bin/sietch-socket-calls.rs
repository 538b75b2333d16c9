//! The executor of the socket-semantics suite as a program: see `sietch_posix_oracle::execute`.

use std::process::ExitCode;

fn main() -> ExitCode {
    sietch_posix_oracle::execute::main()
}
