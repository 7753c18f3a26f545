//! `crowfly serve` and `crowfly cp` as processes: documents, exit statuses, and what stays behind when one of
//! them ends before its time.

mod certificates;
mod faults;
mod files;
#[path = "../../../mover/tests/service_support/issuers.rs"]
mod issuers;
mod names;
mod refusals;
mod shares;
mod stage;
#[path = "../../../mover/tests/service_support/store.rs"]
mod store;
mod stores;
