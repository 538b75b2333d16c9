//! The identity of this build, which the answer to HELLO carries.

use sietch_protocol::socket_service::Build;

/// This build.
pub const BUILD: Build = Build::own(sietch_ring::stream::MAGIC);
