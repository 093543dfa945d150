//! Executes the calls of the programs of a load.
//!
//! A load of one program makes its calls on the thread of the load. In a load of many programs,
//! each program has its own thread, which executes the calls of the program in order. So a call
//! that blocks in the kernel must not block the other programs.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use bimetal_rt::Rt;
use bimetal_rt::mailbox::{Sender, mailbox};
use bimetal_rt::sync::Event;

/// Stack size in bytes of a program's thread. The thread only executes single calls, so it needs
/// little stack.
const STACK_BYTES: usize = 256 << 10;

type Call = Box<dyn FnOnce() + Send>;

/// Where the calls of programs are executed.
pub(super) enum Programs {
    /// On the thread of the load itself.
    One,
    /// On a separate thread for each program.
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

    /// Ends the threads of programs, each after its last call.
    pub(super) fn close(&self) {
        if let Programs::Many(threads) = self {
            threads.close();
        }
    }
}

/// Threads of programs; see the module.
pub(super) struct Threads {
    running: RefCell<BTreeMap<u32, Running>>,
    /// Sender that signals the completion of each call.
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
        // When the last thread ends, the last sender is dropped, and this task then ends.
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
            // The send fails only if the load has been abandoned. No task then receives, so the
            // failure is ignored.
            let _ = bell.send(());
        });
        self.calls_of(program)?
            .send(call)
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let taken = || place.lock().expect("nobody panics with it").take();
        self.done.until_some(taken).await
    }

    /// Returns the channel to the thread of a program. Starts the thread at the first call of the
    /// program.
    fn calls_of(&self, program: u32) -> io::Result<mpsc::Sender<Call>> {
        if let Some(running) = self.running.borrow().get(&program) {
            return Ok(running.calls.clone());
        }
        // The channel needs no bound, because a program has at most one call in flight.
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
            // A thread that has panicked has already printed its message, and the caller that waits
            // for its result notices that the result is missing.
            let _ = thread.join();
        }
    }
}
