"""Tests of the operator table. A package, so that the samples can be imported."""
