//! The places of a queue: for each tag the request that has it, and how far that has come.

use std::task::{Context, Poll, Waker};

use bimetal_policy::scheduler::Tag;
use bimetal_rt::sync::Permit;

use crate::request::{IoResult, Request};

/// What a request does next.
pub(super) enum Turn {
    /// It carries the request that it has started down to the device.
    Carry,
    /// It takes its answer.
    Answered,
}

/// How far a request has come.
enum Stage {
    /// It waits, by itself or as part of another's request.
    Queued(Option<Waker>),
    /// The request that it has started is to be carried down, or has been.
    Issued,
    /// It has been answered.
    Answered(IoResult),
}

struct Place {
    request: Request,
    stage: Stage,
    /// Whoever waited for the answer has gone.
    abandoned: bool,
    /// The place itself, given back with it.
    _permit: Permit,
}

/// All places.
pub(super) struct Places {
    places: Vec<Option<Place>>,
    free: Vec<Tag>,
    /// An empty list, kept for its memory.
    list: Vec<Tag>,
}

impl Places {
    /// So many, all free.
    pub(super) fn new(count: usize) -> Places {
        Places {
            places: (0..count).map(|_| None).collect(),
            free: (0..count as Tag).rev().collect(),
            list: Vec::with_capacity(count),
        }
    }

    /// Places there are.
    pub(super) fn count(&self) -> usize {
        self.places.len()
    }

    /// Takes a place, for which there is a permit.
    pub(super) fn take(&mut self, request: Request, permit: Permit) -> Tag {
        let tag = self.free.pop().expect("a permit is a free place");
        self.places[tag as usize] = Some(Place {
            request,
            stage: Stage::Queued(None),
            abandoned: false,
            _permit: permit,
        });
        tag
    }

    /// What was asked for.
    pub(super) fn request(&self, tag: Tag) -> &Request {
        &self.taken(tag).request
    }

    /// What was asked for, which will not be looked at again.
    pub(super) fn give(&mut self, tag: Tag) -> Request {
        std::mem::replace(&mut self.taken_mut(tag).request, Request::flush())
    }

    /// The request that `tag` has started goes to the device; false if nobody is there to carry it.
    pub(super) fn issue(&mut self, tag: Tag) -> bool {
        let place = self.taken_mut(tag);
        let stage = std::mem::replace(&mut place.stage, Stage::Issued);
        let Stage::Queued(waker) = stage else {
            panic!("only what waits is issued");
        };
        if let Some(waker) = waker {
            waker.wake();
        }
        !place.abandoned
    }

    /// Whether the request that `tag` has started is to be carried down, or has been.
    pub(super) fn is_issued(&self, tag: Tag) -> bool {
        matches!(self.taken(tag).stage, Stage::Issued)
    }

    /// Gives a request its answer.
    pub(super) fn answer(&mut self, tag: Tag, answer: IoResult) {
        let place = self.taken_mut(tag);
        let stage = std::mem::replace(&mut place.stage, Stage::Answered(answer));
        if place.abandoned {
            self.free(tag);
        } else if let Stage::Queued(Some(waker)) = stage {
            waker.wake();
        }
    }

    /// Waits for the turn of a request.
    pub(super) fn poll_turn(&mut self, tag: Tag, context: &Context<'_>) -> Poll<Turn> {
        match &mut self.taken_mut(tag).stage {
            Stage::Queued(waker) => {
                *waker = Some(context.waker().clone());
                Poll::Pending
            }
            Stage::Issued => Poll::Ready(Turn::Carry),
            Stage::Answered(_) => Poll::Ready(Turn::Answered),
        }
    }

    /// Gives the place back, and the answer that is there.
    pub(super) fn leave(&mut self, tag: Tag) -> IoResult {
        match self.free(tag).stage {
            Stage::Answered(answer) => answer,
            Stage::Queued(_) | Stage::Issued => panic!("a place is left with an answer"),
        }
    }

    /// Nobody waits for the answer any more; true if a request was issued that is to be carried by
    /// somebody else now.
    pub(super) fn abandon(&mut self, tag: Tag) -> bool {
        let place = self.taken_mut(tag);
        place.abandoned = true;
        match place.stage {
            Stage::Queued(_) => false,
            Stage::Issued => true,
            Stage::Answered(_) => {
                self.free(tag);
                false
            }
        }
    }

    /// An empty list of tags; it goes back by [`put_list`](Self::put_list).
    pub(super) fn take_list(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.list)
    }

    /// Keeps the list for the next one who needs it.
    pub(super) fn put_list(&mut self, list: Vec<Tag>) {
        assert!(list.is_empty(), "a list goes back empty");
        self.list = list;
    }

    fn free(&mut self, tag: Tag) -> Place {
        let place = self.places[tag as usize].take();
        self.free.push(tag);
        place.expect("a place is left once")
    }

    fn taken(&self, tag: Tag) -> &Place {
        let place = self.places[tag as usize].as_ref();
        place.expect("a tag in use has a place")
    }

    fn taken_mut(&mut self, tag: Tag) -> &mut Place {
        let place = self.places[tag as usize].as_mut();
        place.expect("a tag in use has a place")
    }
}
