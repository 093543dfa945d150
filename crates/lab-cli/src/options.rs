//! Options that several verbs share.

/// Options of the verbs that repeat a published experiment.
#[derive(clap::Args)]
pub(crate) struct ExperimentArgs {
    /// Number of seeds; the results are medians over all seeds
    #[arg(long, value_name = "N", default_value = "3",
          value_parser = clap::value_parser!(u64).range(1..=100))]
    pub(crate) seeds: u64,
    // The help lists this option after all options of the verb itself.
    /// Print JSON
    #[arg(long, display_order = 100)]
    pub(crate) json: bool,
}
