//! The program that passes every frame, for tests. A veth end needs a program where frames are
//! redirected into its other end.

use std::os::fd::AsFd;

use super::assembler::Register::R0;
use super::assembler::{AssembleError, Assembler, Instruction};
use super::error::XdpError;
use super::frame::PASS;
use super::kernel::{Buffers, Program};
use super::netlink::{self, Expect};

/// The program's name in the kernel.
pub(super) const NAME: &str = "sietch_pass";

/// Builds the program.
///
/// # Errors
/// None in practice: it has no labels.
pub(crate) fn assemble() -> Result<Vec<Instruction>, AssembleError> {
    let mut code = Assembler::new();
    code.set(R0, PASS);
    code.exit();
    code.assemble()
}

/// Attaches the program to an interface that carries none. It stays when the result is dropped.
///
/// # Errors
/// [`XdpError`]; then nothing is attached.
pub(super) fn attach(ifindex: u32) -> Result<Program, XdpError> {
    let code = assemble().map_err(|source| XdpError::Assemble { program: NAME, source })?;
    let program = Program::load(NAME, &code, Buffers::One)?;
    netlink::attach(ifindex, program.as_fd(), Expect::Nothing)?;
    Ok(program)
}
