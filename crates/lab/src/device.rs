//! Backend and device of a run: a model in virtual time, devices of this project's stack, a device
//! of this machine, or a disk in User-Mode Linux.

use std::path::{Path, PathBuf};

use bimetal_block::graph::{Graph, read_graph};
use bimetal_block::media::model::{ModelType, Parameters};
use serde::{Deserialize, Serialize};

/// Backend that executes the runs of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backend {
    /// Virtual time, on modelled devices.
    #[default]
    Virtual,
    /// Real time on this machine: the schedulers and the file layer of the virtual backend, over
    /// devices of this project's stack.
    Stack,
    /// Real time on this machine, with the schedulers and file systems of its kernel.
    Native,
    /// A guest in User-Mode Linux, with the schedulers and file systems of the guest's kernel.
    Uml,
}

impl Backend {
    /// Returns true for [`Backend::Virtual`], which is the default and therefore not written to
    /// files.
    pub fn is_virtual(&self) -> bool {
        *self == Backend::Virtual
    }

    /// Returns true if the times that a run measures are meaningful.
    pub fn has_times(self) -> bool {
        self != Backend::Uml
    }

    /// Returns the name of the backend in an experiment file.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Virtual => "virtual",
            Backend::Stack => "stack",
            Backend::Native => "native",
            Backend::Uml => "uml",
        }
    }
}

/// Device of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum DeviceSettings {
    /// A modelled device.
    Model(ModelSettings),
    /// Devices of this project's stack. Serde tries the variants in the order of declaration. The
    /// fields of this variant differ from the fields of the variants of real devices, so Serde
    /// cannot confuse these variants.
    Stack(StackSettings),
    /// A device of this machine.
    Native(NativeDevice),
    /// The disk of a guest in User-Mode Linux.
    Guest(GuestDisk),
}

/// A modelled device, with the values of all parameters of its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelSettings {
    /// The kind of model.
    #[serde(rename = "type")]
    pub of: ModelType,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Queue depth of the device.
    pub depth: u32,
    /// All parameters of the model.
    pub parameters: toml::Table,
}

impl ModelSettings {
    pub(crate) fn model(&self) -> Result<Parameters, String> {
        let profile = self.of.default_profile();
        Parameters::from_profile(self.of, profile, self.parameters.clone())
            .map_err(|error| error.to_string().replace('\n', " "))
    }

    /// Validates the settings of the device: its queue depth and its model.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(crate) fn check(&self) -> Result<(), String> {
        check_depth(self.depth)?;
        self.model().map(|_| ())
    }
}

/// Devices of this project's stack, in the format of its configuration file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackSettings {
    /// Name of the device directly below the queue.
    pub top: String,
    /// Queue depth of the device.
    pub depth: u32,
    /// The sections `[device.NAME]` of the configuration file.
    pub devices: toml::Table,
}

impl StackSettings {
    /// Returns the graph of the devices.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(crate) fn graph(&self) -> Result<Graph, String> {
        let sections = toml::Table::from_iter([("device".to_owned(), self.devices.clone().into())]);
        let text = toml::to_string(&sections).map_err(|error| error.to_string())?;
        // Drop the position from the error: it refers to the generated text, which the user has not
        // written.
        let graph = read_graph(Path::new(""), &text).map_err(|error| error.message)?;
        match graph.nodes().contains_key(&self.top) {
            true => Ok(graph),
            false => {
                let known: Vec<&str> = graph.nodes().keys().map(String::as_str).collect();
                let (top, known) = (&self.top, known.join(", "));
                Err(format!(
                    "`top` names no known device: `{top}`, expected one of {known}"
                ))
            }
        }
    }
}

/// A device of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum NativeDevice {
    /// A loop device, which is created for each run and removed after the run.
    Loop {
        /// File that backs the loop device.
        backing: Backing,
        /// Queue depth of the loop device; the kernel's default if absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        depth: Option<u32>,
    },
    /// An existing block device; its content is overwritten.
    Block {
        /// Path of the device.
        path: PathBuf,
    },
}

/// File that backs a loop device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backing {
    /// A file that is created in this folder before the first run, and removed after the last run.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Size in bytes.
        size_bytes: u64,
    },
    /// An existing file; its content is overwritten.
    File {
        /// Path of the file.
        path: PathBuf,
    },
}

/// The disk of a guest: a file that is created for each run and removed after the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestDisk {
    /// Folder of the file.
    pub folder: PathBuf,
    /// Size of the disk in bytes.
    pub disk_bytes: u64,
}

/// Returns an error if a queue depth is out of range.
///
/// # Errors
/// A description of the mistake.
pub(crate) fn check_depth(depth: u32) -> Result<(), String> {
    match (1..=1024).contains(&depth) {
        true => Ok(()),
        false => Err("`depth` must be 1 to 1024".to_owned()),
    }
}

/// Returns all parameters of a model as a table, in the form in which they are stored in files.
pub(crate) fn written(parameters: &Parameters) -> toml::Table {
    let table = match parameters {
        Parameters::Ssd(of) => toml::Table::try_from(of),
        Parameters::Hdd(of) => toml::Table::try_from(of),
        Parameters::Network(of) => toml::Table::try_from(of),
        Parameters::Flash(of) => toml::Table::try_from(of.as_ref()),
    };
    table.expect("parameters are plain data")
}
