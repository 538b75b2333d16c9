//! Pools on simulated media.

mod crash;
mod faults;
mod golden;
mod life;
mod media;
mod reader;
mod speed;
mod world;
