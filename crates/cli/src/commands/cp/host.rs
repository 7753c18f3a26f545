//! Copies out of host memory, to a server or into a store. What memory holds is a process's own, so it is a
//! pattern that is put there first: such a copy measures the way without a drive, and checks what came.

use crowfly_mover::fabric::Incarnation;
use crowfly_mover::gpu::Sample;
use crowfly_mover::service::{Auth, Dialing, ServiceError};

use super::gpus::{SEED, held_against, size};
use super::{CpArgs, Side, show};
use crate::failure::{Exit, Failure};
use crate::output::Output;

/// Copies, and tells.
pub fn run(
    args: &CpArgs,
    to: Side,
    (served, lives): ([bool; 2], [Option<Incarnation>; 2]),
    out: &mut Output,
) -> Result<Exit, Failure> {
    let dialing = match served.contains(&true) {
        true => super::dialing(args, (served, lives), out)?,
        false => Dialing::by(Auth::Open)?,
    };
    let sample = Sample::in_host(size(args)?, SEED).map_err(ServiceError::from)?;
    let sides = (Side::Loaded(sample.region.clone()), to);
    let mut cp = super::carry(args, sides, dialing, out)?;
    held_against(&sample, &mut cp)?;
    show(&cp, out)
}
