"""Attribution methods, one file per family, each a captum Attribution."""
