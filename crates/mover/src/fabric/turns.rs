//! Points in a protocol between two threads at which a test says which of them goes on. In a program they
//! are nothing.

/// Between two steps of a protocol, where the other thread may be anywhere in its own.
#[cfg(not(test))]
#[inline(always)]
pub(crate) const fn point() {}

#[cfg(test)]
pub(crate) use taken::{Orders, in_turns, point};

#[cfg(test)]
mod taken {
    use std::cell::RefCell;
    use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

    /// Two threads of which one goes on at a time, from a point to the next.
    #[derive(Default)]
    struct Stage {
        state: Mutex<State>,
        changed: Condvar,
    }

    #[derive(Default)]
    struct State {
        /// Who may go on; nobody while it is decided.
        on: Option<usize>,
        ended: [bool; 2],
    }

    thread_local! {
        static PART: RefCell<Option<(Arc<Stage>, usize)>> = const { RefCell::new(None) };
    }

    /// Waits for its turn, in a thread that takes turns.
    pub(crate) fn point() {
        let part = PART.with_borrow(Clone::clone);
        if let Some((stage, own)) = part {
            let mut state = stage.state();
            state.on = None;
            stage.changed.notify_all();
            drop(stage.until(state, |state| state.on == Some(own)));
        }
    }

    impl Stage {
        fn state(&self) -> MutexGuard<'_, State> {
            self.state.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn until<'a>(
            &'a self,
            mut state: MutexGuard<'a, State>,
            come: impl Fn(&State) -> bool,
        ) -> MutexGuard<'a, State> {
            while !come(&state) {
                let waited = self.changed.wait(state);
                state = waited.unwrap_or_else(PoisonError::into_inner);
            }
            state
        }
    }

    /// A thread's part; it ends when this is dropped, by a panic as well.
    struct Part(Arc<Stage>, usize);

    impl Part {
        fn play(stage: &Arc<Stage>, own: usize, body: impl FnOnce()) {
            let _part = Self(Arc::clone(stage), own);
            drop(stage.until(stage.state(), |state| state.on == Some(own)));
            PART.set(Some((Arc::clone(stage), own)));
            body();
        }
    }

    impl Drop for Part {
        fn drop(&mut self) {
            PART.set(None);
            let mut state = self.0.state();
            state.ended[self.1] = true;
            state.on = None;
            self.0.changed.notify_all();
        }
    }

    /// Runs two threads from point to point, the one or the other as the order says, and in turns after
    /// that.
    pub(crate) fn in_turns(
        order: impl IntoIterator<Item = bool>,
        one: impl FnOnce() + Send,
        other: impl FnOnce() + Send,
    ) {
        let stage = Arc::new(Stage::default());
        std::thread::scope(|scope| {
            scope.spawn(|| Part::play(&stage, 0, one));
            scope.spawn(|| Part::play(&stage, 1, other));
            let (mut order, mut last) = (order.into_iter(), 0);
            loop {
                let mut state = stage.until(stage.state(), |state| state.on.is_none());
                if state.ended == [true; 2] {
                    return;
                }
                let next = order.next().map_or(1 - last, usize::from);
                last = if state.ended[next] { 1 - next } else { next };
                state.on = Some(last);
                stage.changed.notify_all();
            }
        });
    }

    /// Orders of steps: every one of so many, and longer ones by chance, the same in each run.
    pub(crate) struct Orders {
        pub every: u32,
        pub longer: u64,
    }

    impl Orders {
        /// Steps of the longer ones.
        const LONG: u32 = 64;

        pub(crate) fn all(&self) -> impl Iterator<Item = Vec<bool>> {
            let bits = |word: u64, count: u32| (0..count).map(move |at| word >> at & 1 == 1);
            let every = self.every;
            let short = (0..1 << every).map(move |word| bits(word, every).collect());
            let mixed = |seed: u64| {
                let mut word = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                word ^ (word >> 27)
            };
            let longer = (0..self.longer).map(move |seed| bits(mixed(seed), Self::LONG).collect());
            short.chain(longer)
        }
    }

    #[test]
    fn two_threads_go_on_as_the_order_says() {
        let said = Mutex::new(String::new());
        let say = |word: char| said.lock().expect("no panic").push(word);
        let one = || {
            ('a'..='c').for_each(|word| {
                say(word);
                point();
            });
        };
        let other = || {
            ('x'..='z').for_each(|word| {
                say(word);
                point();
            });
        };
        in_turns([true, true, false, true, false], one, other);
        assert_eq!(*said.lock().expect("no panic"), "xyazbc");
    }
}
