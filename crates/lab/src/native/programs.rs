//! Programs that block in the kernel independently: one thread for each program, which executes the
//! calls of the program one after another.
//!
//! A load of one program makes its calls on the thread of the load, as any program does. In a load
//! of many programs, a call of one must not block the others.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use bimetal_rt::Rt;
use bimetal_rt::mailbox::{Sender, mailbox};
use bimetal_rt::sync::Event;

/// Stack size of a thread, which executes single calls.
const STACK_BYTES: usize = 256 << 10;

type Call = Box<dyn FnOnce() + Send>;

/// Threads that execute the calls of programs.
pub(super) enum Programs {
    /// The thread of the load itself.
    One,
    /// A thread for each program.
    Many(Threads),
}

impl Programs {
    /// Executes a call for a program, and waits for its result.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        program: u32,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        match self {
            Programs::One => call(),
            Programs::Many(threads) => threads.call(program, call).await,
        }
    }

    /// Ends the threads, each after its last call.
    pub(super) fn close(&self) {
        if let Programs::Many(threads) = self {
            threads.close();
        }
    }
}

/// Threads of programs; see the module.
pub(super) struct Threads {
    running: RefCell<BTreeMap<u32, Running>>,
    /// Sender of a message for each completed call.
    bell: Arc<Sender<()>>,
    done: Rc<Event>,
}

struct Running {
    calls: mpsc::Sender<Call>,
    thread: JoinHandle<()>,
}

impl Threads {
    pub(super) fn new(rt: &Rt) -> io::Result<Threads> {
        let (bell, heard) = mailbox()?;
        let mut letters = heard.listen(rt)?;
        let done = Rc::new(Event::new());
        let rung = Rc::clone(&done);
        // This task ends when the threads have ended and the last sender is dropped.
        rt.spawn(async move {
            while letters.next().await.is_some() {
                rung.notify();
            }
        })
        .detach();
        Ok(Threads {
            running: RefCell::default(),
            bell: Arc::new(bell),
            done,
        })
    }

    async fn call<T: Send + 'static>(
        &self,
        program: u32,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let place = Arc::new(Mutex::new(None));
        let answer = Arc::clone(&place);
        let bell = Arc::clone(&self.bell);
        let call = Box::new(move || {
            let outcome = call();
            *answer.lock().expect("nobody panics with it") = Some(outcome);
            // The send fails only if the load has been abandoned and no task receives any more.
            let _ = bell.send(());
        });
        self.calls_of(program)?
            .send(call)
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let taken = || place.lock().expect("nobody panics with it").take();
        self.done.until_some(taken).await
    }

    /// Returns the channel to a program's thread. The first call of a program starts its thread.
    fn calls_of(&self, program: u32) -> io::Result<mpsc::Sender<Call>> {
        if let Some(running) = self.running.borrow().get(&program) {
            return Ok(running.calls.clone());
        }
        // The channel holds at most one call, because a program has at most one call in flight.
        let (calls, asked) = mpsc::channel::<Call>();
        let thread = std::thread::Builder::new()
            .name(format!("program {program}"))
            .stack_size(STACK_BYTES)
            .spawn(move || asked.into_iter().for_each(|call| call()))?;
        let running = Running {
            calls: calls.clone(),
            thread,
        };
        self.running.borrow_mut().insert(program, running);
        Ok(calls)
    }

    fn close(&self) {
        let running = std::mem::take(&mut *self.running.borrow_mut());
        for (_, Running { calls, thread }) in running {
            drop(calls);
            // A thread that panicked has printed its message; the caller that waits for its result
            // notices that it is missing.
            let _ = thread.join();
        }
    }
}
