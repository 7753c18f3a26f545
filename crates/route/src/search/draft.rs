//! A candidate under construction.

use crate::hop::Hop;
use crate::obstacle::Obstacle;

/// A way with what stands in it, before it knows its ends. Without hops it is a way that needs a
/// device which does not exist: nothing can be said of its links.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    pub name: &'static str,
    pub hops: Vec<Hop>,
    pub obstacles: Vec<Obstacle>,
}

impl Draft {
    pub(super) fn new(name: &'static str, hops: Vec<Hop>) -> Self {
        Self {
            name,
            hops,
            obstacles: Vec::new(),
        }
    }

    /// A way that lacks a device.
    pub(super) fn missing(name: &'static str, obstacle: Obstacle) -> Self {
        Self::new(name, Vec::new()).with([obstacle])
    }

    /// Adds what stands in the way; what is already known is not said twice.
    pub(super) fn with(mut self, obstacles: impl IntoIterator<Item = Obstacle>) -> Self {
        for obstacle in obstacles {
            if !self.obstacles.contains(&obstacle) {
                self.obstacles.push(obstacle);
            }
        }
        self
    }
}
