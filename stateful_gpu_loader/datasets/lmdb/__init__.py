"""Images in LMDB, as Caffe's and Caffe2's tools wrote them."""
