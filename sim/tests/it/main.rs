//! Whole systems in virtual time, one module a subject. One program, because each further one links
//! the whole workspace again. `cargo test -p sietch-sim --test it MODULE` runs one module.

mod durability;
mod nvm;
mod queues;
mod rewrite;
mod storage_faults;
mod system;
mod tcp;
