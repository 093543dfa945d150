//! Locks and atomics for all state that threads share. In `interleavings/` the types of Shuttle are
//! used instead; Shuttle runs the threads of the same code in any order that it chooses.
//!
//! The types have the interface of `parking_lot`. State that a test of interleavings should see
//! must never be shared by other means. Only a value that is set once ([`std::sync::OnceLock`]) is
//! allowed to be invisible to the tests.

#[cfg(not(interleaved))]
mod real {
    pub(crate) use parking_lot::{Condvar, Mutex, RwLock};
    pub(crate) use std::hint::spin_loop;
    pub(crate) use std::sync::atomic;
}

#[cfg(interleaved)]
mod interleaved {
    pub(crate) use shuttle::hint::spin_loop;
    use shuttle::sync as below;
    pub(crate) use shuttle::sync::atomic;
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    const UNPOISONED: &str = "a thread that panics ends the test";

    /// A mutex of Shuttle.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(below::Mutex<T>);

    /// Guard of a held mutex. `below` is the guard of the Shuttle mutex. It is `None` only while
    /// the holder waits for a condition variable.
    pub(crate) struct MutexGuard<'a, T> {
        mutex: &'a Mutex<T>,
        below: Option<below::MutexGuard<'a, T>>,
    }

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Mutex<T> {
            Mutex(below::Mutex::new(value))
        }

        pub(crate) fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().expect(UNPOISONED)
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard {
                mutex: self,
                below: Some(self.0.lock().expect(UNPOISONED)),
            }
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.below.as_ref().expect("it is held")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.below.as_mut().expect("it is held")
        }
    }

    /// A condition variable of Shuttle.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(below::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar(below::Condvar::new())
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let below = guard.below.take().expect("it is held");
            guard.below = Some(self.0.wait(below).expect(UNPOISONED));
        }

        /// Releases the mutex, yields so that other threads can run, and locks the mutex again.
        /// This acts as if the timeout had expired at an arbitrary moment.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            guard.below = None;
            shuttle::thread::yield_now();
            guard.below = Some(guard.mutex.0.lock().expect(UNPOISONED));
        }
    }

    /// A lock for one writer or many readers.
    #[derive(Debug, Default)]
    pub(crate) struct RwLock<T>(below::RwLock<T>);

    impl<T> RwLock<T> {
        pub(crate) fn new(value: T) -> RwLock<T> {
            RwLock(below::RwLock::new(value))
        }

        pub(crate) fn read(&self) -> below::RwLockReadGuard<'_, T> {
            self.0.read().expect(UNPOISONED)
        }

        pub(crate) fn write(&self) -> below::RwLockWriteGuard<'_, T> {
            self.0.write().expect(UNPOISONED)
        }

        pub(crate) fn try_write(&self) -> Option<below::RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }
    }
}

#[cfg(interleaved)]
pub(crate) use interleaved::{Condvar, Mutex, RwLock, atomic, spin_loop};
#[cfg(not(interleaved))]
pub(crate) use real::{Condvar, Mutex, RwLock, atomic, spin_loop};
