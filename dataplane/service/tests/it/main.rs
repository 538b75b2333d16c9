//! Service cores from outside, one module a subject. One program, because each further one links
//! the whole workspace again. `cargo test -p sietch-service --test it MODULE` runs one module.

mod isolated;
mod sockets_fixture;

mod broker;
mod file_system;
mod files;
mod migration;
mod service_core;
mod shared_files;
mod sockets;
mod sockets_exhaustion;
mod sockets_fuzz;
mod sockets_hostile;
mod sockets_publish;
