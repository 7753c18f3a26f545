//! Seats for connections. When all are taken, the next connection still gets one: whoever has asked for
//! nothing for longest gets up, so that half a request sent many times locks nobody out.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;

struct Taken {
    number: u64,
    /// Requests that are being answered.
    asking: usize,
    task: Option<AbortHandle>,
}

#[derive(Default)]
struct Row {
    /// The oldest first.
    taken: Vec<Taken>,
    next: u64,
}

/// All seats.
pub struct Seats {
    limit: usize,
    row: Mutex<Row>,
}

/// A seat of one connection; dropping it frees it.
pub struct Seat {
    seats: Arc<Seats>,
    number: u64,
}

/// A request that is being answered, until this is dropped.
pub struct Asking(Arc<Seat>);

impl Seats {
    /// So many.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            row: Mutex::default(),
        })
    }

    fn row(&self) -> MutexGuard<'_, Row> {
        self.row.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a seat, someone else's if need be.
    pub fn take(self: &Arc<Self>) -> Arc<Seat> {
        let mut row = self.row();
        if row.taken.len() >= self.limit {
            let silent = row.taken.iter().position(|taken| taken.asking == 0);
            let up = row.taken.remove(silent.unwrap_or(0));
            if let Some(task) = up.task {
                task.abort();
            }
        }
        row.next += 1;
        let number = row.next;
        row.taken.push(Taken {
            number,
            asking: 0,
            task: None,
        });
        Arc::new(Seat {
            seats: Arc::clone(self),
            number,
        })
    }
}

impl Seat {
    fn change(&self, change: impl FnOnce(&mut Taken)) -> bool {
        let mut row = self.seats.row();
        let mut taken = row.taken.iter_mut();
        let mine = taken.find(|taken| taken.number == self.number);
        mine.map(change).is_some()
    }

    /// The task that has to end when someone else needs the seat.
    pub fn held_by(&self, task: AbortHandle) {
        let given = task.clone();
        if !self.change(|taken| taken.task = Some(given)) {
            task.abort();
        }
    }

    /// A request came.
    pub fn asks(self: &Arc<Self>) -> Asking {
        self.change(|taken| taken.asking += 1);
        Asking(Arc::clone(self))
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.row().taken.retain(|t| t.number != self.number);
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.change(|taken| taken.asking -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(seats: &Arc<Seats>) -> Vec<u64> {
        seats.row().taken.iter().map(|taken| taken.number).collect()
    }

    #[test]
    fn given_all_seats_taken_the_oldest_that_asks_for_nothing_gets_up() {
        let seats = Seats::new(2);
        let (first, second) = (seats.take(), seats.take());
        let asking = first.asks();
        let third = seats.take();
        assert_eq!(numbers(&seats), [first.number, third.number]);
        drop(asking);
        let fourth = seats.take();
        assert_eq!(numbers(&seats), [third.number, fourth.number]);
        drop((first, second, third));
        assert_eq!(numbers(&seats), [fourth.number]);
    }
}
