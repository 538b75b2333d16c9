//! What the socket service and the TCP host share: requests of applications, and what they concern.
//!
//! - [`application`]: the identity of an application, and a connection between two of them.
//! - [`descriptors`]: descriptors on their way to a VNIC, which return to the closer when dropped.
//! - [`vnic`]: a request that the socket service has read and a VNIC answers.
//! - [`listing`]: what each application has, and what a revocation ended, as JSON in a sealed
//!   memfd.
//! - [`revocation`]: applications whose requests are refused from now on.
//! - [`limits`]: the bounds of all that, with their reasons.
//!
//! Both roles are above this module; it knows neither.

pub(crate) mod application;
pub(crate) mod descriptors;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod revocation;
pub(crate) mod vnic;
