// The functions of HDF5 and OpenSSL that checkpoints, cached datasets and files of weights need.
// The libraries are opened when they are needed first: loading them takes 5 ms, which other
// programs need not spend.
#pragma once

#include <hdf5/serial/hdf5.h>
#include <openssl/evp.h>

namespace lathe {

// Members have the names of HDF5's functions without "H5".
struct Hdf5Library {
  decltype(&::H5dont_atexit) dont_atexit;
  decltype(&::H5open) open;
  decltype(&::H5Eset_auto2) Eset_auto2;
  decltype(&::H5Ewalk2) Ewalk2;
  decltype(&::H5Eclear2) Eclear2;
  decltype(&::H5FDregister) FDregister;
  decltype(&::H5Fcreate) Fcreate;
  decltype(&::H5Fopen) Fopen;
  decltype(&::H5Fflush) Fflush;
  decltype(&::H5Fclose) Fclose;
  decltype(&::H5Gopen2) Gopen2;
  decltype(&::H5Gclose) Gclose;
  decltype(&::H5Lexists) Lexists;
  decltype(&::H5Lget_info) Lget_info;
  decltype(&::H5Lget_val) Lget_val;
  decltype(&::H5Ovisit_by_name2) Ovisit_by_name2;
  decltype(&::H5Oopen) Oopen;
  decltype(&::H5Oclose) Oclose;
  decltype(&::H5Pcreate) Pcreate;
  decltype(&::H5Pclose) Pclose;
  decltype(&::H5Pset_obj_track_times) Pset_obj_track_times;
  decltype(&::H5Pset_chunk) Pset_chunk;
  decltype(&::H5Pset_fletcher32) Pset_fletcher32;
  decltype(&::H5Pset_create_intermediate_group) Pset_create_intermediate_group;
  decltype(&::H5Pset_file_locking) Pset_file_locking;
  decltype(&::H5Pset_driver) Pset_driver;
  decltype(&::H5Pget_chunk) Pget_chunk;
  decltype(&::H5Pget_layout) Pget_layout;
  decltype(&::H5Pget_external_count) Pget_external_count;
  decltype(&::H5Pget_nfilters) Pget_nfilters;
  decltype(&::H5Pget_filter2) Pget_filter2;
  decltype(&::H5PLset_loading_state) PLset_loading_state;
  decltype(&::H5Iget_type) Iget_type;
  decltype(&::H5Screate_simple) Screate_simple;
  decltype(&::H5Sget_simple_extent_ndims) Sget_simple_extent_ndims;
  decltype(&::H5Sget_simple_extent_dims) Sget_simple_extent_dims;
  decltype(&::H5Sget_simple_extent_npoints) Sget_simple_extent_npoints;
  decltype(&::H5Sselect_hyperslab) Sselect_hyperslab;
  decltype(&::H5Sclose) Sclose;
  decltype(&::H5Dcreate2) Dcreate2;
  decltype(&::H5Dopen2) Dopen2;
  decltype(&::H5Dwrite) Dwrite;
  decltype(&::H5Dread) Dread;
  decltype(&::H5Dget_space) Dget_space;
  decltype(&::H5Dget_type) Dget_type;
  decltype(&::H5Dset_extent) Dset_extent;
  decltype(&::H5Dwrite_chunk) Dwrite_chunk;
  decltype(&::H5Dget_chunk_info_by_coord) Dget_chunk_info_by_coord;
  decltype(&::H5Dget_offset) Dget_offset;
  decltype(&::H5Dget_create_plist) Dget_create_plist;
  decltype(&::H5Dclose) Dclose;
  decltype(&::H5Acreate2) Acreate2;
  decltype(&::H5Aopen) Aopen;
  decltype(&::H5Aexists) Aexists;
  decltype(&::H5Aget_space) Aget_space;
  decltype(&::H5Aget_type) Aget_type;
  decltype(&::H5Awrite) Awrite;
  decltype(&::H5Aread) Aread;
  decltype(&::H5Aclose) Aclose;
  decltype(&::H5Tget_class) Tget_class;
  decltype(&::H5Tget_size) Tget_size;
  decltype(&::H5Tget_order) Tget_order;
  decltype(&::H5Tget_sign) Tget_sign;
  decltype(&::H5Tget_precision) Tget_precision;
  decltype(&::H5Tget_ebias) Tget_ebias;
  decltype(&::H5Tis_variable_str) Tis_variable_str;
  decltype(&::H5Tclose) Tclose;
  // Identifiers of types.
  hid_t native_float, native_int64, native_uint8, native_uint16, native_uint32;
  hid_t dataset_creation, link_creation, file_access;  // classes of properties
};

struct CryptoLibrary {
  decltype(&::EVP_MD_CTX_new) EVP_MD_CTX_new;
  decltype(&::EVP_MD_CTX_free) EVP_MD_CTX_free;
  decltype(&::EVP_sha1) EVP_sha1;
  decltype(&::EVP_sha256) EVP_sha256;
  decltype(&::EVP_DigestInit_ex) EVP_DigestInit_ex;
  decltype(&::EVP_DigestUpdate) EVP_DigestUpdate;
  decltype(&::EVP_DigestFinal_ex) EVP_DigestFinal_ex;
};

// Open the library if that is still to be done. Throw FailedPrecondition if it isn't there,
// and say how to get it. Several threads may call them.
const Hdf5Library& Hdf5();
const CryptoLibrary& Crypto();

}  // namespace lathe
