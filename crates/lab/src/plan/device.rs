//! Devices in an experiment file, and their resolved settings for each backend.

use std::path::PathBuf;

use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_block::units::Size;
use serde::Deserialize;

use crate::device::{
    Backend, Backing, DeviceSettings, GuestDisk, ModelSettings, NativeDevice, StackSettings,
    check_depth, written,
};

/// Maximum size in bytes of a flash device, because a run keeps tables of all its pages in memory.
const FLASH_BYTES_MAX: u64 = 256 << 30;
/// Queue depths that a loop device can have, from the minimum of the kernel to the default of the
/// loop driver.
const LOOP_DEPTHS: std::ops::RangeInclusive<u32> = 4..=128;
/// Default queue depth of a modelled device and of a device of this project's stack.
const NCQ_DEPTH: u32 = 31;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileDevice {
    #[serde(rename = "type")]
    of: Kind,
    profile: Option<String>,
    size: Option<Size>,
    depth: Option<u32>,
    #[serde(default)]
    parameters: toml::Table,
    folder: Option<PathBuf>,
    file: Option<PathBuf>,
    path: Option<PathBuf>,
    top: Option<String>,
    #[serde(default)]
    device: toml::Table,
    #[serde(default)]
    overwrite: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Ssd,
    Hdd,
    Network,
    Flash,
    Stack,
    Loop,
    Block,
    Uml,
}

impl Kind {
    fn model(self) -> Option<ModelType> {
        match self {
            Kind::Ssd => Some(ModelType::Ssd),
            Kind::Hdd => Some(ModelType::Hdd),
            Kind::Network => Some(ModelType::Network),
            Kind::Flash => Some(ModelType::Flash),
            Kind::Stack | Kind::Loop | Kind::Block | Kind::Uml => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Stack => "stack",
            Kind::Loop => "loop",
            Kind::Block => "block",
            Kind::Uml => "uml",
            _ => self.model().map_or("", ModelType::name),
        }
    }

    /// Returns the backend that supports a device of this type.
    fn backend(self) -> Backend {
        match self {
            Kind::Stack => Backend::Stack,
            Kind::Loop | Kind::Block => Backend::Native,
            Kind::Uml => Backend::Uml,
            Kind::Ssd | Kind::Hdd | Kind::Network | Kind::Flash => Backend::Virtual,
        }
    }
}

impl FileDevice {
    /// Returns the settings of the device, with all defaults filled in.
    ///
    /// # Errors
    /// A description of the mistake.
    pub(super) fn settings(&self, backend: Backend) -> Result<DeviceSettings, String> {
        if self.of.backend() != backend {
            return Err(format!(
                "a device of type `{}` needs `backend = \"{}\"`, but this is `{}`",
                self.of.name(),
                self.of.backend().name(),
                backend.name()
            ));
        }
        match self.of.model() {
            Some(model) => self.modelled(model).map(DeviceSettings::Model),
            None if self.of == Kind::Stack => self.stack().map(DeviceSettings::Stack),
            None if self.of == Kind::Uml => self.guest().map(DeviceSettings::Guest),
            None => self.native().map(DeviceSettings::Native),
        }
    }

    /// Returns an error if the device has a key that its type does not support.
    fn check_keys(&self, known: &[&str]) -> Result<(), String> {
        let given = [
            ("profile", self.profile.is_some()),
            ("size", self.size.is_some()),
            ("depth", self.depth.is_some()),
            ("parameters", !self.parameters.is_empty()),
            ("folder", self.folder.is_some()),
            ("file", self.file.is_some()),
            ("path", self.path.is_some()),
            ("top", self.top.is_some()),
            ("device", !self.device.is_empty()),
            ("overwrite", self.overwrite),
        ];
        for (key, is_given) in given {
            if is_given && !known.contains(&key) {
                let of = self.of.name();
                let known = known.join(", ");
                return Err(format!(
                    "a device of type `{of}` has no `{key}`, expected one of {known}"
                ));
            }
        }
        Ok(())
    }

    fn size_bytes(&self) -> Result<u64, String> {
        let Size(bytes) = self.size.ok_or("missing field `size`")?;
        match (1 << 24..=1 << 43).contains(&bytes) {
            true => Ok(bytes / 4096 * 4096),
            false => Err("`size` must be 16 MiB to 8 TiB".to_owned()),
        }
    }

    fn modelled(&self, of: ModelType) -> Result<ModelSettings, String> {
        self.check_keys(&["profile", "size", "depth", "parameters"])?;
        let profile = self.profile.as_deref().unwrap_or(of.default_profile());
        let parameters = Parameters::from_profile(of, profile, self.parameters.clone())
            .map_err(|error| error.to_string().replace('\n', " "))?;
        let size_bytes = self.size_bytes()?;
        if of == ModelType::Flash && size_bytes > FLASH_BYTES_MAX {
            return Err("`size` of a flash device must be at most 256 GiB".to_owned());
        }
        let settings = ModelSettings {
            of,
            size_bytes,
            depth: self.depth.unwrap_or(NCQ_DEPTH),
            parameters: written(&parameters),
        };
        settings.check()?;
        Ok(settings)
    }

    fn stack(&self) -> Result<StackSettings, String> {
        self.check_keys(&["top", "depth", "device", "overwrite"])?;
        let top = self.top.clone().ok_or("missing field `top`")?;
        if !self.overwrite {
            return Err(format!(
                "every run overwrites the content of the device `{top}`; set `overwrite = true` to \
                allow that"
            ));
        }
        let settings = StackSettings {
            top,
            depth: self.depth.unwrap_or(NCQ_DEPTH),
            devices: self.device.clone(),
        };
        check_depth(settings.depth)?;
        settings.graph()?;
        Ok(settings)
    }

    fn guest(&self) -> Result<GuestDisk, String> {
        self.check_keys(&["folder", "size"])?;
        Ok(GuestDisk {
            folder: self.folder.clone().ok_or("missing field `folder`")?,
            disk_bytes: self.size_bytes()?,
        })
    }

    fn native(&self) -> Result<NativeDevice, String> {
        if self.of == Kind::Block {
            self.check_keys(&["path", "overwrite"])?;
            let path = self.path.clone().ok_or("missing field `path`")?;
            self.check_overwrite(&path)?;
            return Ok(NativeDevice::Block { path });
        }
        self.check_keys(&["size", "folder", "file", "depth", "overwrite"])?;
        if self
            .depth
            .is_some_and(|depth| !LOOP_DEPTHS.contains(&depth))
        {
            return Err("`depth` of a loop device must be 4 to 128".to_owned());
        }
        let backing = match (&self.folder, &self.file) {
            (Some(folder), None) => Backing::Folder {
                path: folder.clone(),
                size_bytes: self.size_bytes()?,
            },
            (None, Some(_)) if self.size.is_some() => {
                return Err("a `file` has its own size; omit `size`".to_owned());
            }
            (None, Some(file)) => {
                self.check_overwrite(file)?;
                Backing::File { path: file.clone() }
            }
            _ => {
                return Err("a loop device needs a `folder` and a `size`, or a `file`".to_owned());
            }
        };
        Ok(NativeDevice::Loop {
            backing,
            depth: self.depth,
        })
    }

    /// Returns an error if the plan does not allow this program to overwrite the path
    /// (`overwrite = true`).
    fn check_overwrite(&self, path: &std::path::Path) -> Result<(), String> {
        match self.overwrite {
            true => Ok(()),
            false => Err(format!(
                "every run overwrites all of {}; set `overwrite = true` to allow that",
                path.display()
            )),
        }
    }
}
