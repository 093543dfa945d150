//! Programs that wait in the kernel for themselves: a thread for each, which makes its calls one
//! after another.
//!
//! A load of one program makes its calls where it stands, as any program does. With many, a call of
//! one must not hold up the others.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;

use bimetal_rt::Rt;
use bimetal_rt::mailbox::{Sender, mailbox};
use bimetal_rt::sync::Event;

/// Stack of a thread, which makes single calls.
const STACK_BYTES: usize = 256 << 10;

type Call = Box<dyn FnOnce() + Send>;

/// Who makes the calls.
pub(super) enum Programs {
    /// The load itself.
    One,
    /// A thread for each program.
    Many(Threads),
}

impl Programs {
    /// Makes a call for a program, and waits for what came of it.
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

    /// Ends the threads, each behind its last call.
    pub(super) fn close(&self) {
        if let Programs::Many(threads) = self {
            threads.close();
        }
    }
}

/// See the module.
pub(super) struct Threads {
    running: RefCell<BTreeMap<u32, Running>>,
    /// Rings when a call is done.
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
        // It ends when the threads are gone and with them the last who can ring.
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
            // Nobody listens any more when the load has been given up.
            let _ = bell.send(());
        });
        self.calls_of(program)?
            .send(call)
            .map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        let taken = || place.lock().expect("nobody panics with it").take();
        self.done.until_some(taken).await
    }

    /// The way to a program's thread, which is there from its first call on.
    fn calls_of(&self, program: u32) -> io::Result<mpsc::Sender<Call>> {
        if let Some(running) = self.running.borrow().get(&program) {
            return Ok(running.calls.clone());
        }
        // At most one call of a program is under way.
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
            // A thread that panicked has said so; what it should have done is missed by whoever
            // waits for it.
            let _ = thread.join();
        }
    }
}
