//! libFuzzer with one target, which the variable `SIETCH_FUZZ_TARGET` names. `cargo xtask fuzz`
//! builds and runs it.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<sietch_fuzz::Run> = LazyLock::new(|| {
    let name = std::env::var("SIETCH_FUZZ_TARGET").unwrap_or_default();
    sietch_fuzz::target(&name).unwrap_or_else(|| panic!("SIETCH_FUZZ_TARGET={name}: there is no such target"))
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| TARGET(data));
