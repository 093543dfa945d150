//! What threads share goes through here: locks and atomics, or in `interleavings/` those of
//! Shuttle, which runs the same code with the threads in any order that it chooses.
//!
//! What is here has the interface of `parking_lot`. Nothing outside may share by other means what a
//! test of interleavings should see; only what is made once ([`std::sync::OnceLock`]) need not be
//! seen.

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

    /// A lock.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(below::Mutex<T>);

    /// It is held. The lock below is given up only while its holder waits.
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

    /// Threads that wait for a change.
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

        /// The time may be over at any moment: others get their turn, or do not.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            guard.below = None;
            shuttle::thread::yield_now();
            guard.below = Some(guard.mutex.0.lock().expect(UNPOISONED));
        }
    }

    /// A lock for one who changes or many who look.
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
