//! Runs scripts given on the command line: `cargo run -p sietch-conformance -- FILE ...`.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() {
        eprintln!("usage: sietch-conformance FILE ...\nruns each script and says what was not as it says");
        return ExitCode::from(2);
    }
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let result = match std::fs::read_to_string(&file) {
            Ok(text) => sietch_conformance::runner::run(&text).map_err(|failure| failure.to_string()),
            Err(error) => Err(format!("cannot be read: {error}\n")),
        };
        match result {
            Ok(()) => println!("ok      {file}"),
            Err(reason) => {
                print!("FAILED  {file}\n{reason}");
                code = ExitCode::FAILURE;
            }
        }
    }
    code
}
