//! Selection of a volume on the command line.

use std::path::PathBuf;

/// Arguments that select a volume of a running server.
#[derive(clap::Args)]
pub(crate) struct VolumeArgs {
    /// The configuration that the server was started with
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// The mirror, by its name in the configuration
    #[arg(value_name = "VOLUME")]
    pub(crate) volume: String,
}
