//! Devices in memory that take as long as a model says, to be the sides of a mirror.

use std::rc::Rc;

use bimetal_block::Device;
use bimetal_block::layers::timing::Timing;
use bimetal_block::media::memory::MemoryDevice;
use bimetal_block::media::model::{ModelType, Parameters};
use bimetal_rt::Rt;

/// Kind of the device under a side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// An SSD on NVMe.
    Ssd,
    /// A disk of 7200 rpm.
    Disk,
}

impl Kind {
    /// Creates a device of this kind.
    pub fn device(self, rt: &Rt, size_bytes: u64) -> Rc<dyn Device> {
        let (of, profile) = match self {
            Kind::Ssd => (ModelType::Ssd, "nvme-tlc"),
            Kind::Disk => (ModelType::Hdd, "hdd-7200"),
        };
        let mut changes = toml::Table::new();
        if self == Kind::Disk {
            // The side is the outer part of a disk of 1 TB.
            let disk_bytes = toml::Value::Integer(1_000_000_000_000);
            changes.insert("disk_bytes".to_owned(), disk_bytes);
        }
        let parameters = Parameters::from_profile(of, profile, changes).expect("a known profile");
        let memory: Rc<dyn Device> = Rc::new(MemoryDevice::new(rt, size_bytes));
        Rc::new(Timing::new(rt, memory, &parameters, 1).expect("its values are in range"))
    }
}
