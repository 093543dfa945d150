//! The two RDMA libraries. A program opens them when it first uses RDMA. It therefore also runs on
//! machines without the libraries, and is built without their headers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::sync::OnceLock;

use super::abi::{
    CmChannel, CmEvent, CmId, CompletionChannel, ConnParam, Context, Cq, Mr, Pd, QpInit,
};

/// Declares a structure with the functions of the libraries, each as a field with the function's
/// name. The libraries are never closed, so the functions stay valid.
macro_rules! functions {
    ($($library:literal { $(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Functions of the two RDMA libraries.
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*)*
        }

        impl Library {
            fn open() -> Result<Library, String> {
                $($(
                    let $name = symbol(library($library)?, $library, concat!(stringify!($name), "\0"))?;
                )*)*
                // SAFETY: each address is that of the function of this name, and the type is the
                // one that the function's header declares.
                Ok(unsafe {
                    Library {
                        $($($name: std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) $(-> $result)?,
                        >($name),)*)*
                    }
                })
            }
        }
    };
}

functions! {
    c"libibverbs.so.1" {
        fn ibv_alloc_pd(*mut Context) -> *mut Pd;
        fn ibv_dealloc_pd(*mut Pd) -> c_int;
        fn ibv_reg_mr(*mut Pd, *mut c_void, usize, c_int) -> *mut Mr;
        fn ibv_dereg_mr(*mut Mr) -> c_int;
        fn ibv_create_comp_channel(*mut Context) -> *mut CompletionChannel;
        fn ibv_destroy_comp_channel(*mut CompletionChannel) -> c_int;
        fn ibv_create_cq(*mut Context, c_int, *mut c_void, *mut CompletionChannel, c_int) -> *mut Cq;
        fn ibv_destroy_cq(*mut Cq) -> c_int;
        fn ibv_get_cq_event(*mut CompletionChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
        fn ibv_ack_cq_events(*mut Cq, c_uint);
        fn ibv_wc_status_str(c_uint) -> *const c_char;
    }
    c"librdmacm.so.1" {
        fn rdma_create_event_channel() -> *mut CmChannel;
        fn rdma_destroy_event_channel(*mut CmChannel);
        fn rdma_create_id(*mut CmChannel, *mut *mut CmId, *mut c_void, c_uint) -> c_int;
        fn rdma_destroy_id(*mut CmId) -> c_int;
        fn rdma_bind_addr(*mut CmId, *mut libc::sockaddr) -> c_int;
        fn rdma_listen(*mut CmId, c_int) -> c_int;
        fn rdma_get_src_port(*mut CmId) -> u16;
        fn rdma_resolve_addr(*mut CmId, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        fn rdma_resolve_route(*mut CmId, c_int) -> c_int;
        fn rdma_create_qp(*mut CmId, *mut Pd, *mut QpInit) -> c_int;
        fn rdma_destroy_qp(*mut CmId);
        fn rdma_connect(*mut CmId, *mut ConnParam) -> c_int;
        fn rdma_accept(*mut CmId, *mut ConnParam) -> c_int;
        fn rdma_reject(*mut CmId, *const c_void, u8) -> c_int;
        fn rdma_disconnect(*mut CmId) -> c_int;
        fn rdma_migrate_id(*mut CmId, *mut CmChannel) -> c_int;
        fn rdma_get_cm_event(*mut CmChannel, *mut *mut CmEvent) -> c_int;
        fn rdma_ack_cm_event(*mut CmEvent) -> c_int;
        fn rdma_event_str(c_uint) -> *const c_char;
    }
}

/// Returns the functions of the libraries, which the first call opens.
///
/// # Errors
/// `Unsupported` if a library cannot be opened; the text names the library and the package to
/// install.
pub(super) fn the_library() -> io::Result<&'static Library> {
    static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
    let opened = LIBRARY.get_or_init(Library::open);
    opened
        .as_ref()
        .map_err(|why| io::Error::new(io::ErrorKind::Unsupported, why.clone()))
}

fn library(name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the name ends with NUL. Opening the library runs the same initialisation code as in
    // every program that is linked with it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        let why = last_error();
        return Err(format!(
            "RDMA needs {}: {why}; install rdma-core (Debian: librdmacm1 and ibverbs-providers)",
            name.to_string_lossy()
        ));
    }
    Ok(handle)
}

fn symbol(library: *mut c_void, name: &CStr, symbol: &'static str) -> Result<*mut c_void, String> {
    // SAFETY: the handle is open, and the text ends with NUL.
    let address = unsafe { libc::dlsym(library, symbol.as_ptr().cast()) };
    if address.is_null() {
        return Err(format!("{}: {}", name.to_string_lossy(), last_error()));
    }
    Ok(address)
}

fn last_error() -> String {
    // SAFETY: the text, if there is one, is valid until this thread calls a `dl` function again.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            return "no reason was given".to_owned();
        }
        CStr::from_ptr(text).to_string_lossy().into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said() {
        let why = library(c"libnone-such.so.7").unwrap_err();
        assert!(
            why.contains("libnone-such.so.7") && why.contains("install rdma-core"),
            "{why}"
        );
        let own = library(c"libc.so.6").unwrap();
        let why = symbol(own, c"libc.so.6", "rdma_connect\0").unwrap_err();
        assert!(why.contains("rdma_connect"), "{why}");
    }
}
