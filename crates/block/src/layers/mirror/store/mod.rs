//! What a side keeps besides the volume's bytes: the areas of `docs/format/mirror-side.md`.

pub(super) mod checksums;
pub(super) mod regions;
