-- Run once by the container of PostgreSQL, when its volume is empty.
\set amend `cat /run/secrets/amend_database_password`
CREATE ROLE amend LOGIN PASSWORD :'amend';
CREATE DATABASE amend OWNER amend;
\set mlflow `cat /run/secrets/mlflow_database_password`
CREATE ROLE mlflow LOGIN PASSWORD :'mlflow';
CREATE DATABASE mlflow OWNER mlflow;
