"""The doctor: finds and repairs problems with the streams in a database."""

from synrepl.storage.doctor.complaints import Complaint, Diagnosis
from synrepl.storage.doctor.examination import Doctor
from synrepl.storage.doctor.holds import Hold, holds, read_holds

__all__ = ["Complaint", "Diagnosis", "Doctor", "Hold", "holds", "read_holds"]
