//! Given a machine with one fault, when a route is asked for, then this obstacle, proved by what
//! was seen, with this fix.

mod absent;
mod adapters;
mod drives;
mod in_order;
mod kernel;
mod machine;
mod pcie;
mod remote;
