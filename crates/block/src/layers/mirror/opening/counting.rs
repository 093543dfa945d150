//! Counting the content of a volume that is larger than what its sides have room for.

use super::{Attempt, Inspected, OpeningStep, Setback, store_of, superblock_of};
use crate::layers::mirror::capacity::Capacity;
use crate::layers::mirror::family::Plan;

impl Attempt<'_> {
    /// Returns the room for content of the volume. If it is limited, this reads the map of a side
    /// that has everything.
    pub(super) async fn capacity(
        &self,
        inspected: &[Inspected],
        plan: &Plan,
    ) -> Result<Capacity, Setback> {
        let superblock = superblock_of(inspected, plan.sources[0]);
        let Some(room_bytes) = superblock.layout.limited_room_bytes() else {
            return Ok(Capacity::default());
        };
        let seeks = |index: &&usize| {
            let device = self.sides[**index].device();
            device.is_none_or(|device| device.geometry().rotational)
        };
        let source = plan.sources.iter().min_by_key(seeks);
        let source = *source.expect("a volume has a source");
        let told = |done, all| self.tell(source, OpeningStep::ReadingMap, done, all);
        let content = store_of(inspected, source).content(&told);
        let content = self.on_side(source, content).await?;
        Ok(Capacity::limited(room_bytes, content))
    }
}
