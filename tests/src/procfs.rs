//! Facts about a running process, from `/proc` (proc(5)).

/// Returns the resident memory (VmRSS) of a process in bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmRSS:")
}

/// Returns the resident memory of a process in bytes that is no part of a file (RssAnon): its heap,
/// stacks and buffers, without its program and libraries.
pub fn anonymous_bytes(pid: u32) -> u64 {
    status_bytes(pid, "RssAnon:")
}

/// Returns the locked memory (VmLck) of a process in bytes.
pub fn locked_bytes(pid: u32) -> u64 {
    status_bytes(pid, "VmLck:")
}

fn status_bytes(pid: u32, field: &str) -> u64 {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let kib: u64 = status
        .lines()
        .find_map(|l| l.strip_prefix(field))
        .and_then(|v| v.trim().strip_suffix("kB"))
        .and_then(|v| v.trim().parse().ok())
        .unwrap_or_else(|| panic!("no {field} in {path}"));
    kib * 1024
}

/// Returns the number of minor page faults of the main thread of a process since its start: faults
/// without I/O (field `minflt` of its stat file). Each of them maps a page, so a thread that needs
/// no new memory causes none.
pub fn minor_faults(pid: u32) -> u64 {
    let path = format!("/proc/{pid}/task/{pid}/stat");
    let stat = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    // The process name, in parentheses, can contain any character. Field 3, the state, follows the
    // name; minflt is field 10.
    let fields = stat.rsplit(')').next().unwrap_or("").split_whitespace();
    let minflt = fields.skip(10 - 3).map(str::parse).next();
    minflt
        .and_then(Result::ok)
        .unwrap_or_else(|| panic!("no minflt in {path}: {stat}"))
}

/// Returns the number of open file descriptors of a process.
pub fn open_files(pid: u32) -> usize {
    let path = format!("/proc/{pid}/fd");
    std::fs::read_dir(&path)
        .unwrap_or_else(|e| panic!("{path}: {e}"))
        .count()
}

/// Returns whether the process exists and is not a zombie.
pub fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|s| {
        !s.rsplit(')')
            .next()
            .unwrap_or("")
            .trim_start()
            .starts_with('Z')
    })
}

/// Returns a description of each thread of a process, for the message of a test that found a
/// deadlock: its name, its state, the kernel function in which it waits, and its kernel stack.
pub fn where_it_waits(pid: u32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("{pid}: gone\n");
    };
    let mut out = String::new();
    for task in tasks.flatten() {
        let read = |name: &str| {
            std::fs::read_to_string(task.path().join(name)).unwrap_or_else(|e| e.to_string())
        };
        let status = read("status");
        let state = status
            .lines()
            .find(|l| l.starts_with("State:"))
            .unwrap_or("State: ?");
        out += &format!(
            "{} {} {} {}\n",
            pid,
            read("comm").trim(),
            state,
            read("wchan").trim()
        );
        out += &read("stack");
    }
    out
}
