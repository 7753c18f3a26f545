//! The page of `crowfly ui`: a server for one reader, on the loopback interface alone.
//!
//! Whatever the page shows is answered here by the code behind the commands: routes by the search of
//! `crowfly route`, plans by the command line of `crowfly plan`, findings by `crowfly explain`. The
//! scripts in `assets/` lay out and draw; they work out no counter, time or verdict.
//!
//! Read in this order: [`server`] takes connections and [`seats`] them, [`guard`] turns strangers away, [`work`] runs
//! answers beside them with a deadline, [`reply`] gives them their form; [`machines`] and [`scenes`]
//! are what routes are about; [`routes`], [`plans`], [`evidence`] answer; [`assets`] is the page.

pub mod asked;
mod assets;
mod evidence;
mod guard;
mod machines;
mod plans;
mod reply;
mod routes;
mod scenes;
mod seats;
pub mod server;
mod shell;
mod work;

pub use machines::{Here, Machines};
