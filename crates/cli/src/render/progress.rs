//! A progress bar for work that takes long.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const REDRAW: Duration = Duration::from_millis(100);

/// A bar for one piece of work at a time. Dropping it takes it off the screen.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar that nobody sees.
    pub fn hidden() -> Self {
        Self {
            bar: ProgressBar::hidden(),
        }
    }

    /// A bar on standard error.
    pub fn visible() -> Self {
        Self {
            bar: ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr()),
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
        // Only now: a bar that ticks is drawn, and most work is over before anybody could read one.
        self.bar.enable_steady_tick(REDRAW);
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
        self.bar.set_position(done);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
