//! The tags of a queue: for each tag the request that holds it, and the stage of that request.

use std::task::{Context, Poll, Waker};

use bimetal_policy::scheduler::Tag;
use bimetal_rt::sync::Permit;

use crate::request::{IoResult, Request};

/// Next step of the future of a request.
pub(super) enum Turn {
    /// The request of this future started a merged request, and the merged request has been issued.
    /// The future now executes the merged request on the device.
    Carry,
    /// The answer is stored: the future takes the answer.
    Answered,
}

/// Stage of a request that holds a tag.
enum Stage {
    /// Queued. A request that was merged into a request of another tag keeps this stage until its
    /// answer is stored. Holds the waker of the request's future, once that future has been polled.
    Queued(Option<Waker>),
    /// Issued. The request started a merged request, and the merged request is about to be
    /// executed, or is being executed.
    Issued,
    /// Answered.
    Answered(IoResult),
}

struct TaggedRequest {
    request: Request,
    stage: Stage,
    /// True if the future that waited for the answer was dropped.
    abandoned: bool,
    /// Permit of the tag, released together with the tag.
    _permit: Permit,
}

/// All tags.
pub(super) struct Tags {
    tags: Vec<Option<TaggedRequest>>,
    free: Vec<Tag>,
    /// An empty list that is kept to reuse its memory.
    list: Vec<Tag>,
}

impl Tags {
    /// Creates `count` free tags.
    pub(super) fn new(count: usize) -> Tags {
        Tags {
            tags: (0..count).map(|_| None).collect(),
            free: (0..count as Tag).rev().collect(),
            list: Vec::with_capacity(count),
        }
    }

    /// Returns the number of tags.
    pub(super) fn count(&self) -> usize {
        self.tags.len()
    }

    /// Assigns a free tag to `request`; the permit guarantees that a free tag exists.
    pub(super) fn take(&mut self, request: Request, permit: Permit) -> Tag {
        let tag = self.free.pop().expect("a permit is a free place");
        self.tags[tag as usize] = Some(TaggedRequest {
            request,
            stage: Stage::Queued(None),
            abandoned: false,
            _permit: permit,
        });
        tag
    }

    /// Returns the request of a tag.
    pub(super) fn request(&self, tag: Tag) -> &Request {
        &self.taken(tag).request
    }

    /// Moves the request out of its tag. The request of this tag must not be read after this call.
    pub(super) fn give(&mut self, tag: Tag) -> Request {
        std::mem::replace(&mut self.taken_mut(tag).request, Request::flush())
    }

    /// Marks a merged request as issued. `tag` belongs to the request that started the merged
    /// request. Returns false if the future that would execute the merged request was dropped.
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

    /// Returns true if `tag` identifies a merged request that has been issued and has no answer
    /// yet. The tag of a merged request is that of the request with which it began.
    pub(super) fn is_issued(&self, tag: Tag) -> bool {
        matches!(self.taken(tag).stage, Stage::Issued)
    }

    /// Stores the answer of a request.
    pub(super) fn answer(&mut self, tag: Tag, answer: IoResult) {
        let place = self.taken_mut(tag);
        let stage = std::mem::replace(&mut place.stage, Stage::Answered(answer));
        if place.abandoned {
            self.free(tag);
        } else if let Stage::Queued(Some(waker)) = stage {
            waker.wake();
        }
    }

    /// Polls for the next step of a request.
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

    /// Releases the tag and returns its answer.
    pub(super) fn leave(&mut self, tag: Tag) -> IoResult {
        match self.free(tag).stage {
            Stage::Answered(answer) => answer,
            Stage::Queued(_) | Stage::Issued => panic!("a place is left with an answer"),
        }
    }

    /// Marks a tag as abandoned, because the future of its request was dropped. Returns true if the
    /// request was already issued: then a separate task has to execute it.
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

    /// Returns an empty list of tags. The caller returns the list with
    /// [`put_list`](Self::put_list), so that its memory is reused.
    pub(super) fn take_list(&mut self) -> Vec<Tag> {
        std::mem::take(&mut self.list)
    }

    /// Accepts the list back, to reuse its memory.
    pub(super) fn put_list(&mut self, list: Vec<Tag>) {
        assert!(list.is_empty(), "a list goes back empty");
        self.list = list;
    }

    fn free(&mut self, tag: Tag) -> TaggedRequest {
        let place = self.tags[tag as usize].take();
        self.free.push(tag);
        place.expect("a place is left once")
    }

    fn taken(&self, tag: Tag) -> &TaggedRequest {
        let place = self.tags[tag as usize].as_ref();
        place.expect("a tag in use has a place")
    }

    fn taken_mut(&mut self, tag: Tag) -> &mut TaggedRequest {
        let place = self.tags[tag as usize].as_mut();
        place.expect("a tag in use has a place")
    }
}
