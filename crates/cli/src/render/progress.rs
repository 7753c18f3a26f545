//! A progress bar for work that takes long.

use std::cell::Cell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that is over within this time gets no bar: nobody could read one.
const UNSEEN: Duration = Duration::from_millis(100);

/// A bar for one piece of work at a time. Dropping it takes it off the screen.
///
/// It is drawn by whoever says how far the work is, and by no thread of its own: work must not fail for
/// want of one that only shows it.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    /// When the first piece of work began that shall be seen and is not yet.
    unseen_since: Cell<Option<Instant>>,
}

impl Progress {
    /// A bar that nobody sees.
    pub fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            unseen_since: Cell::new(None),
        }
    }

    /// A bar on standard error.
    pub fn visible() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            unseen_since: Cell::new(Some(Instant::now())),
        }
    }

    /// Starts a piece of work of `total` bytes.
    pub fn start(&self, what: &str, total: u64) {
        let template =
            "{msg} [{bar:30}] {decimal_bytes}/{decimal_total_bytes} {decimal_bytes_per_sec} {eta}";
        self.begin(template, what, total);
    }

    /// Starts a piece of work of `total` steps.
    pub fn steps(&self, what: &str, total: u64) {
        self.begin("{msg} [{bar:30}] {pos}/{len} {eta}", what, total);
    }

    fn begin(&self, template: &str, what: &str, total: u64) {
        if let Ok(style) = ProgressStyle::with_template(template) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.reset();
        self.of(total);
        self.bar
            .set_message(super::text::harmless(what).into_owned());
    }

    /// Says that the work is larger, or smaller, than was known at its start. Nothing stands for a size
    /// that nobody knows yet: a bar that is full before the first byte would say that all is done.
    pub fn of(&self, total: u64) {
        match total {
            0 => self.bar.unset_length(),
            total => self.bar.set_length(total),
        }
    }

    /// Says how many bytes or steps of the work are done.
    pub fn at(&self, done: u64) {
        let since = self.unseen_since.get();
        if since.is_some_and(|since| since.elapsed() >= UNSEEN) {
            self.unseen_since.set(None);
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
